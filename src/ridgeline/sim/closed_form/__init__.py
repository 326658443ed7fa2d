"""Op prices -> step time in closed form, for one plan or a hundred thousand: overlap, pipeline, grad sync."""
