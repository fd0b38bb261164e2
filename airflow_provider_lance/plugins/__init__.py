"""Extensions of Airflow itself: the page of streams in its web app."""
