from datetime import datetime

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("runs/digits_{}".format(datetime.now().strftime("%Y%m%d_%H%M%S")))
torch.manual_seed(0)
x = torch.randn(1600, 33)
training_loader = DataLoader(TensorDataset(x, x[:, ::11].argmax(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(33, 150), nn.ReLU(), nn.Linear(150, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_one_epoch(epoch_index, tb_writer):
    running_loss = 0.0
    for i, data in enumerate(training_loader):
        inputs, labels = data
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 10 == 9:
            tb_writer.add_scalar("Loss/train", running_loss / 10, epoch_index * len(training_loader) + i + 1)
            running_loss = 0.0


for epoch in range(5):
    train_one_epoch(epoch, writer)
writer.close()
