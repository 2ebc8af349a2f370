# The duck on this OS: main loop, platform.h, sessions in ring 3.
set(DUCKOS_SESSION
  platform.c platform_main.c platform_random.c
  session/account.c session/areas.c session/cores.c session/layout.c session/memory.c session/pmu.c
  session/ring.c session/ring.S session/session.c session/stub.c session/verdict.c)
