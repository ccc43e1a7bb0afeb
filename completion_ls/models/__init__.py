"""Models on this machine: which there are (`catalogue`), getting them (`fetch`), making them
loadable (`convert`), and one door to it all (`local`)."""
