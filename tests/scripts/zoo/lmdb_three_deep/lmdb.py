"""The part of an embedded database that is read here; the real one must not be used across a fork."""
import os
import struct


class Environment:
    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY)

    def get(self, key, size):
        return os.pread(self.file, 4 * size, 4 * size * struct.unpack(">I", key)[0])


def open(path, readonly=True):
    return Environment(path)
