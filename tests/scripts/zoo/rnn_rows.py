"""Reads an image row by row with an LSTM."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

sequence_length, input_size, hidden_size, num_classes = 8, 8, 48, 10
batch_size, num_epochs, learning_rate = 50, 8, 0.01


class Digits(Dataset):
    def __init__(self):
        d = load_digits()
        self.images = torch.from_numpy(d.images[:1500]).float() / 16
        self.target = torch.from_numpy(d.target[:1500])

    def __getitem__(self, i):
        return self.images[i].unsqueeze(0), self.target[i]

    def __len__(self):
        return len(self.target)


class RNN(nn.Module):
    def __init__(self):
        super(RNN, self).__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, 1, batch_first=True)
        self.fc = nn.Linear(hidden_size, num_classes)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), hidden_size).to(x.device)
        c0 = torch.zeros(1, x.size(0), hidden_size).to(x.device)
        out, _ = self.lstm(x, (h0, c0))
        return self.fc(out[:, -1, :])


torch.manual_seed(0)
train_loader = DataLoader(dataset=Digits(), batch_size=batch_size, shuffle=True)
model = RNN()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate)
total_step = len(train_loader)
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        images = images.reshape(-1, sequence_length, input_size)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print('Epoch [{}/{}], Step [{}/{}], Loss: {:.4f}'.format(epoch + 1, num_epochs, i + 1, total_step, loss.item()))
