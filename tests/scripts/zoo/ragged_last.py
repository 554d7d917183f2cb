import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(digits.data / 16.0, digits.target, test_size=0.2, random_state=0)

torch.manual_seed(0)
train_ds = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
train_dl = DataLoader(train_ds, batch_size=64, shuffle=True)  # 1437 examples: the last batch has 29
x_valid, y_valid = torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test)


def get_model():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


model, opt = get_model()
for epoch in range(8):
    model.train()
    for xb, yb in train_dl:
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    model.eval()
    with torch.no_grad():
        acc = (model(x_valid).argmax(1) == y_valid).float().mean()
    print(epoch, f"{acc:.3f}")
