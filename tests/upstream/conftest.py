from hypothesis import settings

# The first call of a compiled function pays for its compilation, so no example has a deadline.
settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")
