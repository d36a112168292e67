"""Bags are cut over the devices between samples, never within one."""

from __future__ import annotations

import numpy as np
import pytest
from shardcore_pjrt.routing.capacity import quarter_steps
from shardcore_pjrt.routing.spread import spread_bags

from shardcore.backend.messages import FeatureBags


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8, 12])
def test_the_bags_of_a_sample_stay_on_one_device(devices):
    samples, per_sample = 10, 3
    ids = np.arange(samples * per_sample)  # each bag holds its own number
    bags = FeatureBags(ids, np.arange(ids.size + 1), bags_per_sample=per_sample)
    spread = spread_bags([bags], devices)
    own = -(-samples // devices)
    assert spread.own == (own * per_sample,)
    assert spread.bags == (quarter_steps(own) * per_sample,)
    owned = [spread.ids(device) // per_sample for device in range(devices)]
    for own in owned:
        assert (np.unique(own, return_counts=True)[1] == per_sample).all()
    assert np.concatenate(owned).tolist() == np.repeat(np.arange(samples), per_sample).tolist()
