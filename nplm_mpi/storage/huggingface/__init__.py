"""A model as a folder that Hugging Face's libraries open; ``modeling_nplm.py`` goes into each folder."""
