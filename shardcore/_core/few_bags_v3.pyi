from shardcore._core.few_bags_baseline import *
