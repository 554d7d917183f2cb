"""Breast cancer, yes or no: the network ends in a sigmoid."""
import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


class BinaryClassifier(nn.Module):
    def __init__(self, n_features):
        super(BinaryClassifier, self).__init__()
        self.layer_1 = nn.Linear(n_features, 128)
        self.layer_2 = nn.Linear(128, 64)
        self.layer_out = nn.Linear(64, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, inputs):
        x = torch.relu(self.layer_1(inputs))
        x = torch.relu(self.layer_2(x))
        return self.sigmoid(self.layer_out(x))


def train_model(epochs=20, batch_size=16):
    torch.manual_seed(69)
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:512], y[:512]
    X = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32)
    y = torch.tensor(y, dtype=torch.float32)
    train_loader = DataLoader(dataset=TensorDataset(X, y), batch_size=batch_size, shuffle=True)
    model = BinaryClassifier(X.shape[1])
    criterion = nn.BCELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for e in range(1, epochs + 1):
        epoch_loss = 0
        for X_batch, y_batch in train_loader:
            optimizer.zero_grad()
            y_pred = model(X_batch)
            loss = criterion(y_pred, y_batch.unsqueeze(1))
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(f'Epoch {e+0:03}: | Loss: {epoch_loss/len(train_loader):.5f}')


train_model()
