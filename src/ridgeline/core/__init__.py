"""The ground floor: units, dtypes, evidence, errors, and tables read from files."""
