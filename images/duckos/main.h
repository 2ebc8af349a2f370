/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKOS_MAIN_H
#define DUCKOS_MAIN_H

void duckos_main(void); /* never returns */

#endif
