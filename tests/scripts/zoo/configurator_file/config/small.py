# settings of the small run
batch_size = 10
max_iters = 120
