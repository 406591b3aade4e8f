"""What a run is: options, presets, YAML."""
