"""A generator and a discriminator on rings of points."""
from __future__ import print_function
import argparse
import math

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument('--batchSize', type=int, default=32, help='input batch size')
parser.add_argument('--workers', type=int, help='number of data loading workers', default=0)
parser.add_argument('--nz', type=int, default=8, help='size of the latent z vector')
parser.add_argument('--niter', type=int, default=3, help='number of epochs to train for')
parser.add_argument('--beta1', type=float, default=0.5)
parser.add_argument('--manualSeed', type=int, default=999)
opt = parser.parse_args()
print(opt)
torch.manual_seed(opt.manualSeed)

angle = torch.rand(1600, 1) * 2 * math.pi
points = torch.cat([angle.cos(), angle.sin()], 1) + 0.02 * torch.randn(1600, 2)
dataloader = DataLoader(TensorDataset(points), batch_size=opt.batchSize, shuffle=True, num_workers=opt.workers)

netG = nn.Sequential(nn.Linear(opt.nz, 64), nn.ReLU(True), nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, 2))
netD = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
                     nn.Linear(64, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(opt.beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(opt.beta1, 0.999))

for epoch in range(opt.niter):
    for i, (real,) in enumerate(dataloader, 0):
        # (1) Update D network
        netD.zero_grad()
        n = real.size(0)
        label = torch.full((n,), 1.0)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(n, opt.nz))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()
        # (2) Update G network
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
    print('[%d/%d] Loss_D: %.4f Loss_G: %.4f' % (epoch, opt.niter, (errD_real + errD_fake).item(), errG.item()))
