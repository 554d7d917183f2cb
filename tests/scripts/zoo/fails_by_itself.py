"""Needs a file that is not there unless somebody has downloaded it."""
import torch
from torch import nn

weights = torch.load("pretrained/resnet.pth")
model = nn.Linear(4, 4)
model.load_state_dict(weights)
