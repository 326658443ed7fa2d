"""What serving engines share: launch scripts, loads, the words of formats and replicas."""
