/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKOS_CPU_POWER_H
#define DUCKOS_CPU_POWER_H

void power_init(void); /* full clock on all cores; finds the sensor */

#endif
