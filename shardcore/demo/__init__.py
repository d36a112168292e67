"""The main job, ``shardcore demo``: which module of the standard library is a function from?

::

    options    what the command line may say, its defaults, and its rules
    corpus     the functions of a directory of Python files, and the module of each
    features   a function's text as a bag of hashed ids
    softmax    the dense layer behind the embedding, in NumPy
    model      the sharded table and the dense layer as one thing to ask, train, save and restore
    training   the epochs, with a progress bar and a checkpoint after each
    modules    what was learned: a vector per module, its neighbours, its place on a map
    picture    the map and the curves of the training
    run        the job from beginning to end, and what it prints

It learns from the source code of the running Python and downloads nothing. `training`, `picture`
and `run` import the packages of the extra ``demo``; the command line imports `run` once it knows
that they are there.
"""
