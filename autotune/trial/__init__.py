"""What runs inside the user's training process; the only folder that may import torch."""
