"""As the package's own examples are written."""


def get_torchbiggraph_config():
    return {
        "entity_path": "data",
        "edge_paths": ["data/edges_partitioned"],
        "checkpoint_path": "out",
        "entities": {"all": {"num_partitions": 1}},
        "relations": [{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "dimension": 32,
        "comparator": "dot",
        "num_epochs": 200,
        "num_uniform_negs": 50,
        "loss_fn": "softmax",
        "lr": 0.1,
        "eval_fraction": 0.0,
        "workers": 2,
    }
