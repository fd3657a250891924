"""Imported before any test: what holds for all of them."""

from hypothesis import settings

# How long an example takes says how busy the machine is and nothing about what is tested.
settings.register_profile("tidemill", deadline=None)
settings.load_profile("tidemill")
