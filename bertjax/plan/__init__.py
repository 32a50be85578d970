"""What a training step needs and how fast it can be, found by compiling it for absent hardware."""
