"""What docs/recipes/tabular.md starts from: income.onnx, a network over numbers and categories with fresh weights, and
people.csv, a table with texts and missing values."""

import csv

import numpy as np
import same
import torch
from torch import nn

NUMBERS, CATEGORIES = ("age", "hours"), ("job", "city")
JOBS, CITIES, INCOMES = ("baker", "clerk", "doctor", "driver"), ("Aachen", "Bonn", "Celle"), ("high", "low", "middle")


class Network(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.norm = nn.BatchNorm1d(len(NUMBERS))  # so that the table needs no scaling
        self.job, self.city = nn.Embedding(8, 3), nn.Embedding(8, 2)
        self.layers = nn.Sequential(nn.Linear(len(NUMBERS) + 5, width), nn.ReLU(), nn.Linear(width, len(INCOMES)))

    def forward(self, numbers, categories):
        parts = self.norm(numbers), self.job(categories[:, 0]), self.city(categories[:, 1])
        return self.layers(torch.cat(parts, 1))


def make():
    torch.manual_seed(0)
    inputs = {"numbers": torch.rand(4, 2), "categories": torch.randint(0, 3, (4, 2))}
    same.export(Network(), inputs, "income.onnx")
    generator = np.random.default_rng(0)
    with open("people.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["name", *NUMBERS, *CATEGORIES, "income"])
        for number in range(300):
            age, hours = generator.integers(18, 70), generator.integers(5, 50)
            job, city = generator.choice(JOBS), generator.choice(CITIES)
            score = hours / 20 + 2 * (job == "doctor") + (city == "Bonn") + age / 100
            income = "low" if score < 2 else "middle" if score < 3.2 else "high"
            table.writerow([f"p{number}", "" if number % 17 == 3 else age, "NA" if number % 23 == 5 else hours, job, city, income])


def arrays(path):
    """(numbers float[N,2], categories int64[N,2], labels int64[N]) of the table: what is missing becomes the mean of its
    column, texts become their places in the sorted list of all that the column holds."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))

    def numbers(column):
        values = np.array([float(row[column]) if row[column] not in ("", "NA") else np.nan for row in rows])
        return np.where(np.isnan(values), np.nanmean(values), values)

    def places(column):
        return np.unique([row[column] for row in rows], return_inverse=True)[1]

    return (np.stack([numbers(c) for c in NUMBERS], 1), np.stack([places(c) for c in CATEGORIES], 1), places("income"))
