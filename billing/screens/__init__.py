"""The admin's screens of billing, one module for each thing that they are about."""
