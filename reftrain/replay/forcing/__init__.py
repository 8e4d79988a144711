"""The forced replay: recorded values replace computed ones before the computation goes on."""
