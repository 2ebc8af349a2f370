/* SPDX-License-Identifier: Apache-2.0
 *
 * A 16550 UART at 0x3F8. Many small boxes have none: the scratch register and loopback tell.
 */
#include "console/serial.h"

#include "cpu/port.h"
#include "param.h"

#include <stdbool.h>

enum {
    PORT = 0x3f8,
    DATA = PORT, /* and the divisor's low byte while LINE_DIVISOR is set */
    INTERRUPT_ENABLE = PORT + 1,
    FIFO_CONTROL = PORT + 2,
    LINE_CONTROL = PORT + 3,
    MODEM_CONTROL = PORT + 4,
    LINE_STATUS = PORT + 5,
    LINE_8N1 = 0x03,
    LINE_DIVISOR = 0x80,
    MODEM_READY = 0x0b, /* DTR, RTS, OUT2 */
    MODEM_LOOP = 0x1e,
    STATUS_ROOM = 0x20,
    DIVISOR_115200 = 1,
    FIFO_ON = 0xc7,
    TEST_BYTE = 0x5a,
};

static bool there;

static bool wait_for(uint8_t status) {
    for (uint32_t i = 0; i < CONSOLE_SERIAL_WAIT_SPINS; i++)
        if ((port_in_8(LINE_STATUS) & status) != 0) return true;
    return false;
}

void serial_init(void) {
    port_out_8(INTERRUPT_ENABLE, 0);
    port_out_8(LINE_CONTROL, LINE_DIVISOR);
    port_out_8(DATA, DIVISOR_115200);
    port_out_8(INTERRUPT_ENABLE, 0);
    port_out_8(LINE_CONTROL, LINE_8N1);
    port_out_8(FIFO_CONTROL, FIFO_ON);
    port_out_8(MODEM_CONTROL, MODEM_LOOP);
    port_out_8(DATA, TEST_BYTE);
    there = wait_for(1) && port_in_8(DATA) == TEST_BYTE;
    port_out_8(MODEM_CONTROL, MODEM_READY);
}

void serial_write_bytes(const char *text, size_t bytes) {
    for (size_t i = 0; there && i < bytes; i++) {
        there = wait_for(STATUS_ROOM); /* a port that hangs is not waited for again */
        if (there) port_out_8(DATA, (uint8_t)text[i]);
    }
}

void serial_write(const char *text) {
    size_t bytes = 0;
    while (text[bytes] != 0) bytes++;
    serial_write_bytes(text, bytes);
}

void serial_off(void) { there = false; }
