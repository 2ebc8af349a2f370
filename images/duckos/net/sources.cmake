# The network of duckos: PCI Express, NIC drivers, protocols.
set(DUCKOS_NET
  net/arp.c net/checksum.c net/dhcp.c net/dhcp_message.c net/ethernet.c net/health.c net/icmp.c net/ipv4.c
  net/net.c net/random.c net/udp.c
  nic/e1000e.c nic/igb.c nic/igc.c nic/intel.c nic/intel_queues.c nic/intel_rings.c nic/nic.c
  nic/r8169.c nic/virtio_net.c
  pci/config.c pci/pci.c)
