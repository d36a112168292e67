"""The backend, imported only when it is asked for."""


class AcmeBackend:
    def __init__(self, colour):
        self.colour = colour
