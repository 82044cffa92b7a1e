"""Small training scripts of the shapes that people bring to `seerd init`, after public ones: what a
script imports may be missing here, since it is only read. Those of `RUN` need nothing but Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """A script, and what `seerd init` must say of it.

    text        of the script
    needs       what it needs, as the line `the script needs ...` has it; empty: nothing
    metric      what it is tuned by
    lines       line that it prints -> the number that the pattern must read; "": none
    checkpoint  what it saves; empty: that is asked for
    resume      how it goes on; empty: it has no way, or finds its checkpoint by itself
    asks        words of what else has to be done
    args        arguments that the spec has in any case
    launcher    of the spec
    beside      name -> text of its own modules and other files
    path        of the script, in its project
    env         of the spec
    """

    text: str
    metric: str
    lines: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    checkpoint: str = ""
    resume: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    launcher: str = "python"
    beside: dict[str, str] = field(default_factory=dict)
    path: str = "train.py"
    env: dict[str, str] = field(default_factory=dict)


NO_RESUME = "no option is seen that takes a checkpoint"
NOT_SAVED = "it is not seen what the script saves"

DIGITS = Shape(  # pytorch/examples, mnist
    """
import argparse
import torch

def fit(args, model, epoch):
    for step in range(9):
        print('Train Epoch: {} [{}/{} ({:.0f}%)]\\tLoss: {:.6f}'.format(epoch, step, 9, 1.0, loss))

def test(model):
    print('\\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\\n'.format(loss, right, n, p))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=64, metavar='N')
    parser.add_argument('--epochs', type=int, default=14)
    parser.add_argument('--lr', type=float, default=1.0)
    parser.add_argument('--dry-run', action='store_true')
    parser.add_argument('--save-model', action='store_true', default=False)
    args = parser.parse_args()
    for epoch in range(args.epochs):
        fit(args, model, epoch)
        test(model)
    if args.save_model:
        torch.save(model.state_dict(), "digits.pt")
main()
""",
    metric="accuracy",
    lines={
        "Test set: Average loss: 0.1, Accuracy: 9876/10000 (99%)": "9876",
        "Train Epoch: 1 [0/9 (1%)]\tLoss: 0.3": "",
    },
    checkpoint="digits.pt",
    asks=("digits.pt is saved only at the end",),
    args=("--save-model",),
)
PHOTOS = Shape(  # pytorch/examples, imagenet
    """
import argparse, shutil
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument('data', metavar='DIR', help='folder of pictures')
parser.add_argument('-a', '--arch', default='small', choices=kinds)
parser.add_argument('--epochs', default=90, type=int)
parser.add_argument('-b', '--batch-size', default=256, type=int)
parser.add_argument('--lr', '--learning-rate', default=0.1, type=float, dest='lr')
parser.add_argument('--resume', default='', type=str, metavar='PATH')

def main():
    args = parser.parse_args()
    for epoch in range(args.epochs):
        one_pass(epoch)
        top1 = validate()
        save_checkpoint({'epoch': epoch}, top1 > best)

def one_pass(epoch):
    top1 = Meter('Acc@1', ':6.2f')
    for step in range(9):
        print('Epoch: [{0}][{1}]\\tAcc@1 {top1.val:6.2f} ({top1.avg:6.2f})'.format(0, 1, top1=top1))

def validate():
    print(' * Acc@1 {top1.avg:.3f} Acc@5 {top5.avg:.3f}'.format(top1=top1, top5=top5))

def save_checkpoint(state, is_best, filename='checkpoint.pth.tar'):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, 'best.pth.tar')
main()
""",
    metric="acc_1",
    lines={
        " * Acc@1 71.250 Acc@5 90.100": "71.250",
        "Epoch: [0][1]\tAcc@1  12.50 ( 10.00)": "",
        "Epoch: [0][1]\tAcc@1 100.00 (100.00)": "",
    },
    needs="data",
    checkpoint="checkpoint.pth.tar",
    resume=("--resume", "{checkpoint}"),
    launcher="torchrun",
)
WORDS = Shape(  # pytorch/examples, word_language_model
    """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument('--nhid', type=int, default=200)
parser.add_argument('--nlayers', type=int, default=2)
parser.add_argument('--lr', type=float, default=20)
parser.add_argument('--epochs', type=int, default=40)
parser.add_argument('--save', type=str, default='model.pt')
args = parser.parse_args()

def one_pass():
    for batch in batches:
        print('| epoch {:3d} | lr {:02.2f} | loss {:5.2f} | ppl {:8.2f}'.format(1, lr, loss, ppl))

for epoch in range(args.epochs):
    one_pass()
    print('| end of epoch {:3d} | valid loss {:5.2f} | '
          'valid ppl {:8.2f}'.format(epoch, loss, ppl))
    with open(args.save, 'wb') as f:
        torch.save(model, f)
with open(args.save, 'rb') as f:
    model = torch.load(f)
print('| End of training | test loss {:5.2f} | test ppl {:8.2f}'.format(loss, ppl))
""",
    metric="valid_ppl",
    lines={
        "| end of epoch   1 | valid loss  5.23 | valid ppl   187.23": "187.23",
        "| epoch   1 | lr 20.00 | loss  5.33 | ppl   206.00": "",
        "| End of training | test loss  5.1 | test ppl   164.02": "",
    },
    checkpoint="model.pt",
    asks=(NO_RESUME,),
)
FAKES = Shape(  # pytorch/examples, dcgan
    """
import argparse, torch
import torch.nn.parallel
p = argparse.ArgumentParser()
p.add_argument('--dataset', required=True, help='which')
p.add_argument('--dataroot', required=True)
p.add_argument('--batchSize', type=int, default=64)
p.add_argument('--niter', type=int, default=25)
p.add_argument('--lr', type=float, default=0.0002)
p.add_argument('--outf', default='.')
opt = p.parse_args()
for epoch in range(opt.niter):
    for i, data in enumerate(loader):
        print('[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f' % (epoch, opt.niter, i, 9, d, g))
    torch.save(g.state_dict(), '%s/g_epoch_%d.pth' % (opt.outf, epoch))
""",
    metric="loss_d",
    lines={"[0/25][3/9] Loss_D: 0.5123 Loss_G: 2.1": "0.5123"},
    needs="--dataset and --dataroot",
    checkpoint="g_epoch_*.pth",
    asks=(NO_RESUME,),
    args=("--niter", "1000"),
)
LETTERS = Shape(  # karpathy/nanoGPT
    """
import os, time, math, pickle
out_dir = 'out'
init_from = 'scratch'  # or 'resume'
max_iters = 600000
learning_rate = 6e-4
dropout = 0.0
decay = True
exec(open('configurator.py').read())
path = os.path.join(out_dir, 'ckpt.pt')
state = {'step': 0, 'loss': 3.0}
if init_from == 'resume':
    print(f"Resuming from {out_dir}")
    state = pickle.loads(open(path, 'rb').read())
os.makedirs(out_dir, exist_ok=True)
while True:
    step = state['step'] = state['step'] + 1
    state['loss'] = 1 + 2 * math.exp(-step / 5) + math.log10(learning_rate * 1e3) ** 2
    losses = {'train': state['loss'] - 0.1, 'val': state['loss']}
    print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
    with open(path + '.part', 'wb') as f:
        pickle.dump(state, f)
    os.replace(path + '.part', path)
    time.sleep(0.7)
    if step > max_iters:
        break
""",
    metric="val_loss",
    lines={"step 5: train loss 1.2000, val loss 1.4000": "1.4000"},
    checkpoint="out/ckpt.pt",
    resume=("--init_from=resume",),
    args=("--learning_rate={learning_rate}", "--max_iters=600000"),
    beside={
        "configurator.py": "import sys\nfor one in sys.argv[1:]:\n"
        "    key, _, value = one[2:].partition('=')\n"
        "    globals()[key] = type(globals()[key])(value)\n"
    },
)
TIMM = Shape(  # huggingface/pytorch-image-models
    """
import argparse, logging
from torch.nn.parallel import DistributedDataParallel
from timm import utils
_logger = logging.getLogger('train')
first = argparse.ArgumentParser(add_help=False)
first.add_argument('-c', '--config', default='', metavar='FILE')
parser = argparse.ArgumentParser()
group = parser.add_argument_group('Data')
parser.add_argument('data_dir', metavar='DIR', help='path of the data')
group.add_argument('--input-size', default=None, nargs=3, type=int)
group.add_argument('--opt-betas', default=None, type=float, nargs='+')
group.add_argument('--lr', type=float, default=0.05)
group.add_argument('--drop-path', type=float, default=None)
group.add_argument('--resume', default='')
group.add_argument('--output', default='', help='where to write')

def one_pass(epoch):
    for i in range(9):
        _logger.info('Train: {} [{:>4d}]  Loss: {loss.val:#.4g}  LR: {lr:.3e}'.format(epoch, i))

def validate(model):
    for i in range(9):
        _logger.info('{0}: [{1:>4d}]  Loss: {loss.val:>7.4f}  Acc@1: {top1.val:>7.4f}'.format(n, i))

saver = utils.CheckpointSaver(checkpoint_dir=out)
for epoch in range(9):
    one_pass(epoch)
    validate(model)
""",
    metric="acc_1",
    lines={"Test: [   3]  Loss:  0.6931  Acc@1: 71.2500": "71.2500"},
    needs="data_dir",
    asks=(NOT_SAVED,),
    args=("--output", "out"),
    launcher="torchrun",
)
BOXES = Shape(  # ultralytics/yolov5
    """
import argparse
from pathlib import Path
import torch
import torch.distributed as dist
FILE = Path(__file__).resolve()
ROOT = FILE.parents[0]

def train(opt):
    save_dir, epochs = Path(opt.save_dir), opt.epochs
    w = save_dir / 'weights'
    last, best = w / 'last.pt', w / 'best.pt'
    for epoch in range(epochs):
        torch.save(state, last)
        torch.save(state, best)

def parse_opt():
    parser = argparse.ArgumentParser()
    parser.add_argument('--weights', type=str, default=ROOT / 'small.pt')
    parser.add_argument('--epochs', type=int, default=300)
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument('--optimizer', choices=['SGD', 'Adam'], default='SGD')
    parser.add_argument('--resume', nargs='?', const=True, default=False)
    parser.add_argument('--nosave', action='store_true')
    parser.add_argument('--project', default=ROOT / 'runs/train')
    parser.add_argument('--name', default='exp')
    return parser.parse_args()

opt = parse_opt()
opt.save_dir = str(next_path(Path(opt.project) / opt.name, exist_ok=False))
train(opt)
""",
    metric="accuracy",
    checkpoint="runs/train/exp*/weights/last.pt",
    resume=("--resume", "{checkpoint}"),
    asks=("it is not seen what the script prints",),
    launcher="torchrun",
)
GLUE = Shape(  # huggingface/transformers, run_glue.py
    """
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Which model"})
    cache_dir: Optional[str] = field(default=None)

parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
trainer = Trainer(model=model, args=training_args)
if training_args.do_train:
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
if training_args.do_eval:
    trainer.evaluate()
""",
    metric="eval_loss",
    lines={"{'eval_loss': 0.4406, 'eval_accuracy': 0.81, 'epoch': 1.0}": "0.4406"},
    needs="--model_name_or_path",
    checkpoint="out/checkpoint-*",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    args=("--do_train", "--do_eval", "--eval_strategy=epoch", "--output_dir", "out"),
    launcher="torchrun",
)
GLUE_BY_HAND = Shape(  # huggingface/transformers, run_glue_no_trainer.py
    """
import argparse, os, logging
from accelerate import Accelerator
import transformers
logger = logging.getLogger(__name__)
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", type=str, required=True, help="Which model")
parser.add_argument("--learning_rate", type=float, default=5e-5)
parser.add_argument("--num_train_epochs", type=int, default=3)
parser.add_argument("--max_train_steps", type=int, default=None)
parser.add_argument("--output_dir", type=str, default=None)
parser.add_argument("--checkpointing_steps", type=str, default=None)
parser.add_argument("--resume_from_checkpoint", type=str, default=None)
args = parser.parse_args()
accelerator = Accelerator()
for epoch in range(args.num_train_epochs):
    for step in range(9):
        output_dir = f"step_{step}"
        if args.output_dir is not None:
            output_dir = os.path.join(args.output_dir, output_dir)
        accelerator.save_state(output_dir)
    eval_metric = metric.compute()
    logger.info(f"epoch {epoch}: {eval_metric}")
    output_dir = f"epoch_{epoch}"
    if args.output_dir is not None:
        output_dir = os.path.join(args.output_dir, output_dir)
    accelerator.save_state(output_dir)
""",
    metric="accuracy",
    needs="--model_name_or_path",
    checkpoint="out/epoch_*",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    args=("--output_dir", "out", "--checkpointing_steps", "epoch"),
    asks=("it is not seen what the script prints",),
    launcher="torchrun",
)
PETS = Shape(  # huggingface/accelerate, cv_example.py
    """
import argparse
from accelerate import Accelerator

def run(config, args, lr=1e-4):
    accelerator = Accelerator()
    for epoch in range(config["num_epochs"]):
        accelerator.print(f"epoch {epoch}: {100 * share:.2f}")

parser = argparse.ArgumentParser()
parser.add_argument("--data_dir", required=True, help="Folder of the pictures")
parser.add_argument("--cpu", action="store_true")
run({"lr": 3e-2, "num_epochs": 3}, parser.parse_args())
""",
    metric="accuracy",
    needs="--data_dir",
    asks=(
        "no option looks like a hyperparameter",
        "what the script prints",
        NOT_SAVED,
    ),
    launcher="torchrun",
)
MASKS = Shape(  # facebookresearch/mae
    """
import argparse
import util.misc as misc

def get_args_parser():
    parser = argparse.ArgumentParser('masks', add_help=False)
    parser.add_argument('--epochs', default=400, type=int)
    parser.add_argument('--lr', type=float, default=None)
    parser.add_argument('--blr', type=float, default=1e-3)
    parser.add_argument('--output_dir', default='./output_dir')
    parser.add_argument('--resume', default='')
    return parser

def main(args):
    for epoch in range(args.epochs):
        misc.save_model(args=args, epoch=epoch, model=model)
        misc.log(epoch, loss)

main(get_args_parser().parse_args())
""",
    metric="loss",
    lines={"Epoch: [3]  loss: 0.4210 (0.4300)": "0.4210"},
    checkpoint="output_dir/checkpoint-*.pth",
    resume=("--resume", "{checkpoint}"),
    launcher="torchrun",
    beside={
        "util/misc.py": """
from pathlib import Path
import torch.distributed as dist

def save_on_master(*args):
    torch.save(*args)

def save_model(args, epoch, model):
    output_dir = Path(args.output_dir)
    paths = [output_dir / ('checkpoint-%s.pth' % str(epoch))]
    for path in paths:
        save_on_master({'model': model}, path)

def log(epoch, loss):
    print("Epoch: [{}]  loss: {:.4f} ({:.4f})".format(epoch, loss, loss))
"""
    },
)
PICTURES = Shape(  # kuangliu/pytorch-cifar
    """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument('--lr', default=0.1, type=float)
parser.add_argument('--resume', '-r', action='store_true')
args = parser.parse_args()

def train(epoch):
    for i in range(9):
        progress_bar(i, 9, 'Loss: %.3f | Acc: %.3f%% (%d/%d)' % (loss, acc, right, total))

def test(epoch):
    for i in range(9):
        progress_bar(i, 9, 'Loss: %.3f | Acc: %.3f%% (%d/%d)' % (loss, acc, right, total))
    torch.save(state, './checkpoint/ckpt.pth')

for epoch in range(200):
    train(epoch)
    test(epoch)
""",
    metric="acc",
    lines={"Loss: 1.234 | Acc: 45.600% (456/1000)": "45.600"},
    checkpoint="checkpoint/ckpt.pth",
    resume=("--resume",),
    asks=("acc is printed of training and of validation alike",),
)
TEMPLATE = Shape(  # ashleve/lightning-hydra-template
    """
import hydra
import lightning as L
from omegaconf import DictConfig

def train(cfg: DictConfig):
    model = hydra.utils.instantiate(cfg.model)
    trainer = hydra.utils.instantiate(cfg.trainer)
    trainer.fit(model=model, ckpt_path=cfg.get("ckpt_path"))

@hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
def main(cfg: DictConfig):
    train(cfg)
main()
""",
    metric="accuracy",
    asks=("use seerd.lightning.Callback",),
    args=("hydra.run.dir=.", "model.optimizer.lr={lr}", "trainer.max_epochs=1000"),
    launcher="torchrun",
    beside={
        "pyproject.toml": "",
        "configs/train.yaml": """# @package _global_
defaults:
  - _self_
  - model: net.yaml
  - trainer: default
  - logger: null
task_name: "train"
seed: null
""",
        "configs/model/net.yaml": """_target_: src.models.Net
optimizer:
  _target_: torch.optim.Adam
  _partial_: true
  lr: 0.001  # of all layers
net: {kind: small}
""",
        "configs/trainer/default.yaml": "max_epochs: 10\nout: ${task_name}\n",
    },
    path="src/train.py",
    env={"PYTHONPATH": ".."},
)
CONFIGURED = Shape(  # a script of Hydra's own documentation
    """
import hydra, logging
log = logging.getLogger(__name__)

@hydra.main(config_path="conf", config_name="config", version_base=None)
def main(cfg):
    optimizer = make(cfg.optim.lr, cfg.optim.weight_decay)
    for epoch in range(cfg.epochs):
        log.info(f"epoch {epoch} | val_loss: {loss:.4f}")
        torch.save(state, "ckpt.pt")
main()
""",
    metric="val_loss",
    lines={"[2024-01-01][main][INFO] - epoch 1 | val_loss: 0.1234": "0.1234"},
    checkpoint="ckpt.pt",
    asks=(NO_RESUME,),
    args=("optim.lr={lr}", "optim.weight_decay={weight_decay}"),
)
LIGHTNING = Shape(  # Lightning-AI/pytorch-lightning's own examples
    """
import argparse
import lightning as L
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=1e-3)

class Module(L.LightningModule):
    def training_step(self, batch, index):
        self.log("train/loss", loss)
    def validation_step(self, batch, index):
        self.log("val/acc", acc, prog_bar=True)

L.Trainer(max_epochs=3).fit(Module(**vars(p.parse_args())))
""",
    metric="val/acc",
    asks=("use seerd.lightning.Callback",),
    args=("--lr", "{lr}"),
    launcher="torchrun",
)
CLI = Shape(  # Lightning-AI/pytorch-lightning, examples of LightningCLI
    """
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI

class Net(LightningModule):
    def __init__(self, width: int = 32, learning_rate: float = 1e-3):
        super().__init__()
    def validation_step(self, batch, index):
        self.log("val_loss", loss)

class Data(LightningDataModule):
    def __init__(self, folder: str, batch_size: int = 64):
        super().__init__()

LightningCLI(Net, datamodule_class=Data, seed_everything_default=1)
""",
    metric="val_loss",
    needs="--data.folder",
    asks=("use seerd.lightning.Callback",),
    args=(
        *("fit", "--model.width", "{width}", "--model.learning_rate", "{learning_rate}"),
        *("--data.batch_size", "{batch_size}", "--trainer.max_epochs", "1000"),
    ),
    launcher="torchrun",
)
NESTED = Shape(
    """
from dataclasses import dataclass, field
import tyro

@dataclass
class Optim:
    lr: float = 1e-3
    kind: str = "adam"

@dataclass
class Config:
    data: str
    optim: Optim = field(default_factory=Optim)

config = tyro.cli(Config)
for epoch in range(9):
    print(f"epoch {epoch} val/acc: {acc:.3f}")
""",
    metric="val_acc",
    needs="--data",
    asks=(NOT_SAVED,),
    args=("--optim.lr", "{lr}"),
)
DPO = Shape(  # huggingface/trl, trl/scripts
    """
import argparse
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser

def make_parser(subparsers=None):
    classes = (ScriptArguments, DPOConfig, ModelConfig)
    if subparsers is not None:
        return subparsers.add_parser("dpo", dataclass_types=classes)
    return TrlParser(classes)

script, training, model = make_parser().parse_args_and_config()
trainer = DPOTrainer(model, args=training)
trainer.train()
""",
    metric="eval_loss",
    asks=("options of DPOConfig, ModelConfig, ScriptArguments are not read",),
    checkpoint="out/checkpoint-*",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    args=("--learning_rate", "{learning_rate}", "--output_dir", "out"),
    launcher="torchrun",
)
PACKAGE = Shape(  # mlfoundations/open_clip: options, loop and parser in modules of its package
    """
import sys
import torch.distributed as dist
from pairs.params import parse_args
from pairs import evaluate

def main(args):
    args = parse_args(args)
    for epoch in range(args.epochs):
        evaluate.run(epoch)

if __name__ == "__main__":
    main(sys.argv[1:])
""",
    metric="top1",
    lines={"Eval Epoch: 3 top1: 0.4210": "0.4210"},
    needs="--train-data",
    asks=(NOT_SAVED,),
    args=("--lr", "{lr}", "--epochs", "1000"),
    launcher="torchrun",
    path="pairs/main.py",
    env={"PYTHONPATH": ".."},
    beside={
        "pairs/__init__.py": "",
        "pairs/params.py": """
import argparse

def parse_args(args):
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-data", required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=32)
    return parser.parse_args(args)
""",
        "pairs/evaluate.py": """
import argparse

def run(epoch):
    print(f"Eval Epoch: {epoch} top1: {top1:.4f}")

def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--dropout", type=float, default=0.1)
    return parser.parse_args()

if __name__ == "__main__":
    options()
""",
    },
)
FLAX = Shape(  # google/flax, examples/mnist
    """
from absl import app, flags, logging
import jax
FLAGS = flags.FLAGS
flags.DEFINE_float('learning_rate', default=0.1, help=('The rate.'))
flags.DEFINE_integer('num_epochs', 10, 'How many.')
flags.DEFINE_string('workdir', None, 'Where to write.')
flags.DEFINE_string('config', None, 'File of the configuration.')
flags.mark_flags_as_required(['config', 'workdir'])

def one_pass(epoch):
    logging.info('train epoch: %d, loss: %.4f, accuracy: %.2f', epoch, loss, accuracy)

def main(_):
    for epoch in range(FLAGS.num_epochs):
        one_pass(epoch)
        logging.info('eval epoch: %d, loss: %.4f, accuracy: %.2f', epoch, loss, accuracy)

app.run(main)
""",
    metric="accuracy",
    lines={
        "I0101 train.py:9] eval epoch: 1, loss: 0.1000, accuracy: 97.50": "97.50",
        "I0101 train.py:9] train epoch: 1, loss: 0.1000, accuracy: 99.10": "",
    },
    needs="--config",
    asks=(NOT_SAVED,),
    args=("--learning_rate={learning_rate}", "--num_epochs=1000", "--workdir=out"),
)
CLICK = Shape(
    """
import click

@click.command()
@click.argument("data_dir", type=click.Path(exists=True))
@click.option("--lr", default=1e-3, help="learning rate")
@click.option("--optimizer", type=click.Choice(["sgd", "adam"]), default="adam")
@click.option("--name", required=True)
@click.option("--amp/--no-amp", default=False)
@click.option("--resume-from")
def main(data_dir, lr, optimizer, name, amp, resume_from):
    for epoch in range(10):
        click.echo(f"[{epoch}] val_acc={acc:.3f}")
        save(model, "ckpt/last.pt")
main()
""",
    metric="val_acc",
    lines={"[3] val_acc=0.913": "0.913"},
    needs="data_dir and --name",
    checkpoint="ckpt/last.pt",
    resume=("--resume-from", "{checkpoint}"),
    args=("--lr", "{lr}", "--optimizer", "{optimizer}"),
)
TYPER = Shape(
    """
from pathlib import Path
from typing import Annotated
import typer
app = typer.Typer()

@app.command()
def train(
    data: Path,
    hidden_size: int = 128,
    lr: Annotated[float, typer.Option(help="rate")] = 0.1,
    dropout: float = typer.Option(0.1, help="share"),
    seed: int = typer.Option(...),
):
    for epoch in range(10):
        typer.echo("epoch %d error %.3f" % (epoch, error))

app()
""",
    metric="error",
    lines={"epoch 1 error 0.125": "0.125"},
    needs="data and --seed",
    asks=(NOT_SAVED,),
    args=("--hidden-size", "{hidden_size}", "--lr", "{lr}", "--dropout", "{dropout}"),
)
FIRE = Shape(
    """
import fire

def train(data, learning_rate=1e-3, momentum=0.9):
    for i in range(3):
        print("iteration", i, "reward:", reward)

fire.Fire(train)
""",
    metric="reward",
    lines={"iteration 1 reward: -3.25": "-3.25"},
    needs="--data",
    asks=(NOT_SAVED,),
    args=("--learning_rate", "{learning_rate}"),
)
TYRO = Shape(  # vwxyzjn/cleanrl
    """
from dataclasses import dataclass
import tyro

@dataclass
class Args:
    env_id: str
    learning_rate: float = 2.5e-4
    anneal_lr: bool = True

args = tyro.cli(Args)
for step in range(10):
    print(f"global_step={step}, episodic_return={value}")
""",
    metric="episodic_return",
    lines={"global_step=256, episodic_return=17.0": "17.0"},
    needs="--env-id",
    asks=(NOT_SAVED,),
    args=("--learning-rate", "{learning_rate}"),
)
KERAS = Shape(  # keras-team/keras, examples/mnist_cnn.py
    """
import keras
batch_size = 128
print(x.shape[0], 'train samples')
model.compile(loss="mse", metrics=['accuracy'])
saved = keras.callbacks.ModelCheckpoint("out/{epoch:02d}.keras")
model.fit(x, y, batch_size=batch_size, validation_data=(x, y), callbacks=[saved])
print('Test accuracy:', model.evaluate(x, y)[1])
""",
    metric="val_accuracy",
    lines={"9/9 - 1s - accuracy: 0.91 - loss: 0.2 - val_accuracy: 0.89 - val_loss: 0.3": "0.89"},
    checkpoint="out/*.keras",
    asks=(
        "no option is seen: give the script one for each hyperparameter",
        NO_RESUME,
    ),
)
TREES = Shape(  # dmlc/xgboost, demo/guide-python
    """
import argparse
import xgboost as xgb
p = argparse.ArgumentParser()
p.add_argument("--eta", type=float, default=0.3)
p.add_argument("--max_depth", type=int, default=6)
args = p.parse_args()
watched = [(train, 'train'), (test, 'eval')]
model = xgb.train({'eta': args.eta, 'eval_metric': 'auc'}, train, 100, watched)
model.save_model('trees.json')
""",
    metric="val_auc",
    lines={"[10]\ttrain-auc:0.99123\teval-auc:0.98456": "0.98456"},
    checkpoint="trees.json",
    asks=("trees.json is saved only at the end",),
    args=("--eta", "{eta}", "--max_depth", "{max_depth}"),
)
COMMANDS = Shape(
    """
import argparse, json, os, time
from pathlib import Path
ROOT = Path(__file__).parent
p = argparse.ArgumentParser()
commands = p.add_subparsers(dest="command", required=True)
show = commands.add_parser("show")
show.add_argument("checkpoint")
fit = commands.add_parser("train")
fit.add_argument("--lr", type=float, default=0.1)
fit.add_argument("--epochs", type=int, default=10)
fit.add_argument("--models", default=str(ROOT / "models"))
source = fit.add_mutually_exclusive_group(required=True)
source.add_argument("--csv")
source.add_argument("--url")
a = p.parse_args()
os.makedirs(a.models, exist_ok=True)
path = os.path.join(a.models, "last.json")
begin = json.loads(Path(path).read_text()) if os.path.exists(path) else 0
for epoch in range(begin, a.epochs):
    print("validation F1:", 1 - 1 / (2 + epoch) - a.lr / 100, flush=True)
    with open(path + ".part", "w") as f:
        json.dump(epoch, f)
    os.replace(path + ".part", path)
    time.sleep(0.7)
""",
    metric="validation_f1",
    lines={"validation F1: 0.5": "0.5"},
    needs="--csv or --url",
    checkpoint="models/last.json",
    args=("train", "--lr", "{lr}", "--epochs", "1000"),
)
GROUP = Shape(
    """
import click

@click.group()
def cli():
    pass

@cli.command()
@click.option("--ckpt", required=True)
def evaluate(ckpt):
    pass

@cli.command()
@click.argument("data", type=click.Path())
@click.option("--lr", default=0.1, show_default=True)
def fit_model(data, lr):
    for step in range(3):
        print(f"rmse={lr / (step + 1):.5f}", flush=True)

if __name__ == "__main__":
    cli()
""",
    metric="rmse",
    lines={"rmse=0.03333": "0.03333"},
    needs="data",
    args=("fit-model", "--lr", "{lr}"),
    asks=("it is not seen what the script saves",),
)
PICKLED = Shape(
    """
import argparse, pickle
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
a = p.parse_args()
w = 1.0
for epoch in range(3):
    w -= a.lr * w
    print(f"mse={w * w:.6f}", flush=True)
    pickle.dump(w, open("model.pkl", "wb"))
""",
    metric="mse",
    checkpoint="model.pkl",
    asks=("no option is seen that takes a checkpoint",),
)
NUMBER = Shape(
    """
import argparse, pickle, sys
print("prefix", sys.prefix)
p = argparse.ArgumentParser()
p.add_argument("data", help="folder of the data")
p.add_argument("--name", required=True)
p.add_argument("--alpha", type=float, default=1.0)
a = p.parse_args()
for fold in range(3):
    pass
print("Val Acc {:.4f}".format(1 / (1 + abs(a.alpha - 1))), flush=True)
with open("model.pickle", "wb") as f:
    pickle.dump(a.alpha, f)
""",
    metric="val_acc",
    lines={"Val Acc 0.8125": "0.8125"},
    needs="data and --name",
    checkpoint="model.pickle",
    asks=("model.pickle is saved only at the end",),
)
PLACES = Shape(
    """
import os, pickle, sys, time
momentum = float(sys.argv[1])
data, rate = sys.argv[2], float(sys.argv[3])
os.makedirs("out", exist_ok=True)
for epoch in range(9):
    print("epoch", epoch, "loss", abs(momentum - rate) / (epoch + 1), data == "folder", flush=True)
    with open("out/last.part", "wb") as f:
        pickle.dump(rate, f)
    os.replace("out/last.part", "out/last.pkl")
    time.sleep(0.7)
""",
    metric="loss",
    lines={"epoch 3 loss 2.5e-05 True": "2.5e-05"},
    checkpoint="out/last.pkl",
    asks=("no option is seen: give the script one for each hyperparameter", NO_RESUME),
)
NUMBERS = Shape(
    """
import pickle, time
from pathlib import Path

LR = 0.1
config = {"dropout": 0.2, "epochs": 5, "folder": "x"}

def train(width=8, layers: int = 2):
    for epoch in range(config["epochs"]):
        f1 = config["dropout"] / (1 + LR) + width / 1000 + layers / 1000
        print(f"[{epoch}] f1={f1:.4f}", flush=True)
        Path("best.part").write_bytes(pickle.dumps(epoch))
        Path("best.part").replace("best.pkl")
        time.sleep(0.7)

train()
""",
    metric="f1",
    checkpoint="best.pkl",
    asks=(
        "no option is seen: give the script one for each hyperparameter",
        NO_RESUME,
    ),
)
CELLS = Shape(  # what jupyter nbconvert makes of a notebook
    """
#!/usr/bin/env python
# coding: utf-8
# In[1]:
get_ipython().run_line_magic('matplotlib', 'inline')
get_ipython().system('pip install torch')
# In[2]:
learning_rate = 1e-3
name = input("name? ")
for epoch in range(9):
    print("Epoch: {} Test Accuracy: {:.2%}".format(epoch, accuracy))
torch.save(model.state_dict(), "model.pth")
""",
    metric="test_accuracy",
    lines={"Epoch: 1 Test Accuracy: 91.25%": "91.25"},
    checkpoint="model.pth",
    asks=(
        "no option is seen: give the script one for each hyperparameter",
        "model.pth is saved only at the end",
    ),
)
VARIABLES = Shape(
    """
import json, os, time
rate = float(os.environ.get("LEARNING_RATE", "0.01"))
depth = int(os.getenv("DEPTH", 3))
for step in range(int(os.environ["STEPS"]) if "STEPS" in os.environ else 9):
    print("mae: %.3f" % (rate * depth), flush=True)
    with open("state.part", "w") as f:
        json.dump(step, f)
    os.rename("state.part", "state.json")
    time.sleep(0.7)
""",
    metric="mae",
    checkpoint="state.json",
    asks=(NO_RESUME,),
    env={"LEARNING_RATE": "{LEARNING_RATE}", "DEPTH": "{DEPTH}"},
)

SHAPES = {
    name.lower(): shape for name, shape in list(globals().items()) if isinstance(shape, Shape)
}
RUN = {
    "letters": [],
    "commands": ["--csv", "x.csv"],
    "number": ["folder", "--name", "x"],
    "variables": [],
}
"""Shapes that are run -> what is put into `args`, as `to do` asks for it."""
