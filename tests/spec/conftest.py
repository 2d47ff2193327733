"""Settings of the tests of `spec`."""

from hypothesis import settings

# Other work on the same machine must not fail a test.
settings.register_profile("spec", deadline=None)
settings.load_profile("spec")
