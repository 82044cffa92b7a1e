"""Trains a support vector machine on scikit-learn's digits and prints one number. It knows nothing
of seerd, and saves nothing.
"""

import argparse

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

parser = argparse.ArgumentParser()
parser.add_argument("--C", type=float, default=1.0)
parser.add_argument("--gamma", type=float, default=1e-3)
args = parser.parse_args()

images, other_images, digits, other_digits = train_test_split(
    *load_digits(return_X_y=True), random_state=0
)
model = SVC(C=args.C, gamma=args.gamma).fit(images, digits)
print(f"accuracy {model.score(other_images, other_digits):.4f}")
