"""Network boot of the ducks: who is answered what, by dnsmasq and by our HTTP server.

Pure: ``answers.decide`` (one request -> one answer), ``dnsmasq.render_config`` (the same rules as
a dnsmasq configuration), ``scripts`` (iPXE), ``dnsmasq_log`` (log line -> BootEvent), ``watch``
(events -> loops and other findings). Acting: ``intents``, ``tree``, ``http_server``, ``service``.
docs/reference/boot.md describes all of it.
"""
