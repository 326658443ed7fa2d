"""The command line: `ridgeline VERB`, each verb a library function of the same name."""
