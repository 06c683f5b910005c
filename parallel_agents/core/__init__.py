"""Values, configuration, seeding, errors and files: what every other part is built on."""
