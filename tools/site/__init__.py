"""`make site`: the course as static pages that open from a folder, without a server and without a network.

pages     a unit: what the learner gets, what came out when its solution ran, hints and answers behind folds
slides    the same unit for a projector
chart     the map of the units
gallery   the recordings, predicted over measured
sphinx/   the settings of Sphinx, which turns all of it into HTML
"""
