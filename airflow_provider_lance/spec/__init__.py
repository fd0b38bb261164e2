"""What a user configures about a stream: sink options, source options, the job specification."""
