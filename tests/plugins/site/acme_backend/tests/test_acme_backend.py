import pytest

import shardcore as sc
from shardcore.testing import BackendConformance


class TestAcme(BackendConformance):
    @pytest.fixture
    def backend(self):
        return sc.get_backend("acme")

    @pytest.fixture
    def raw_rows(self):
        return lambda backend, table, slot: backend.arrays[table][slot]


class TestPlugin:
    def test_is_found(self):
        assert sc.backends()["acme"].provider == "acme-backend:acme_backend"
