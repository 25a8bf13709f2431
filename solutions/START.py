# %% [markdown]
# # Why does my chat slow down?
#
# > *An interactive chat product sees its time per output token (TPOT) start near 40 ms and climb to 120 ms
# > by the time a session holds 30k tokens of history. Why, and which fixes ship without retraining?*
#
# These notebooks take you from this report to a fix. In each you predict a number, write the mechanism yourself, run
# it in a real decoder, and measure whether you were right. One idea carries all of them: **a decode step takes as
# long as the bytes it must stream: the weights, which stay the same, and the KV cache, which grows with every token
# of every session.**
#
# **Begin here:** [00 · A clock you can trust](00-clock/00-clock.ipynb). Its first picture is your own machine
# slowing down, before any exercise.
#
# ## What you need
#
# Python, well enough to write a function of ten lines with NumPy or PyTorch. Of language models no more than this: a
# *token* is a piece of text, which the model knows by a number. The model is a stack of *layers*, each with *weights* that
# training has fixed. In a layer's *attention* each token compares its *query* with the *keys* of all tokens up to itself,
# and adds up their *values*, weighted by how well they match; it does so in several *heads* side by side. At the end come
# the *logits*, a score for every token that could be next. Everything else is explained where it first matters.
#
# ## Where you are
#
# Run the two cells below (Shift+Enter) whenever you come back. They read what the tests said and what you guessed, and
# compute nothing. `make score`, in a terminal in the course's folder (from here: `make -C .. score`), grades what is
# saved, as an instructor would.

# %%
from helpers import course

course.progress()

# %% [markdown]
# How well do you guess? Every prediction that you logged before its measurement, one point each. On the line you were
# right; the band is a factor of 1.5 either way. Hollow points were measured on a busy machine.

# %%
course.guesses()

# %% [markdown]
# ## The map
#
# An arrow says: uses the words and the functions of.
#
# <!-- map -->
#
# <!-- units -->

# %% [markdown]
# ## Three ways through
#
# <!-- paths -->
#
# The times are the sums of the units' own, all exercises and measurements included.

# %% [markdown]
# ## When you are stuck
#
# - **Read the message** below the test, word by word. It usually names the slip.
# - In a cell of your own, `check.hint("02.4")` gives a first step and, called again, the next;
#   `check.solution("02.4")` shows the course's own answer and why it is so. They cost no points, and are noted in
#   your log.
# - *This cell needs exercise 02.4, which is still blank*: fill that in first.
# - *… is not there yet*, or anything odd after a restart: *Run → Run All Above Selected Cell*. It stops at a test that
#   does not pass: click the cell below that test, Shift+click the one that you want, and press Shift+Enter.
# - A curve that is all over the place, `[busy]` in its title: something else uses the machine. Close it and run the
#   cell again.
# - Something is wrong with the machine itself: `make doctor` (from here: `make -C .. doctor`) says what, and what to do.
#   Its page can be pasted into a bug report.
# - You work with an AI assistant: let it read `AGENTS.md` in this folder first. It asks the assistant to explain and
#   to ask, and to leave the solving to you.
#
# More about the cells, the messages and the log: `docs/learners.md` in the course's folder.

# %% [markdown]
# ## Words
#
# Each is explained where it first matters, in the unit whose number stands behind it.
#
# <!-- glossary -->
