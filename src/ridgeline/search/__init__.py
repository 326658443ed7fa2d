"""Turn many predictions into a choice: what runs get done, how fast, how dear, how soon."""
