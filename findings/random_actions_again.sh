#!/usr/bin/env bash
# A SAC, TD3 or DQN agent that is loaded and trained on acts at random again for `learning_starts` steps.
#
# Versions:  stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `learn` counts from zero unless `reset_num_timesteps=False`, and up to `learning_starts` the actions are drawn
#            from the space, as in a first training. So each `learn`, after `load` or not, begins with an agent that has
#            unlearned all, and puts what it does into the replay buffer. No message says so.
# Seen:      an agent that always acts near 0, loaded, with 50 steps before learning: 40 or more of its next 50 actions are
#            not, and none of the 50 after; with `reset_num_timesteps=False` none at all.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC

actions = []


class World(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        actions.append(abs(float(action[0])))
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, False, self.steps >= 10, {}


agent = SAC("MlpPolicy", World(), learning_starts=50, learning_rate=0.0, seed=0, policy_kwargs={"net_arch": [8]})
with torch.no_grad():
    for parameter in agent.actor.parameters():
        parameter.zero_()
    agent.actor.log_std.bias.fill_(-10.0)  # always about 0
agent.save("agent")
for reset in (True, False):
    loaded = SAC.load("agent", env=World())
    loaded.num_timesteps = 200
    actions.clear()
    loaded.learn(100, reset_num_timesteps=reset)
    far = np.array(actions) > 0.05
    print(f"reset_num_timesteps={reset}: random of the first 50 actions {far[:50].sum()}, of the next {far[51:].sum()}")
    assert (far[:50].sum() >= 40) == reset and far[51:].sum() == 0
PYTHON
