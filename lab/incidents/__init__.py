"""The incident lab: scripted incidents on real servers, their alerts and their diagnosis."""
