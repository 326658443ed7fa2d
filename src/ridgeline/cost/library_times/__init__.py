"""A collective of a library on a system -> the seconds a benchmark measures, by few fitted numbers per kind of link."""
