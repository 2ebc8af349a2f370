/* SPDX-License-Identifier: Apache-2.0
 *
 * The empty list of names that the first link of the image uses (panic/symbols.h).
 */
        .section .symbols, "a"
        .globl symbols, symbols_end
symbols:
symbols_end:
