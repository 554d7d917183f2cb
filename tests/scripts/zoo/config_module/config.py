"""All settings in one place."""
BATCH_SIZE = 32
NUM_WORKERS = 0
LEARNING_RATE = 1e-3
EPOCHS = 4
HIDDEN = 128
SEED = 31
