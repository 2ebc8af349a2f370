"""The host side of a fleet: model, engine, experts, transport and the OpenAI-compatible server."""
