"""What a user may write about a stream: sink options, source options, the job specification."""
