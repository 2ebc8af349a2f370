/* SPDX-License-Identifier: Apache-2.0
 *
 * Included first in every C file of the image (-include): all symbols are our own and near, so code
 * reaches them relative to itself. Without it the linker may put the final address of an extern
 * symbol into code that runs before paging.
 */
#pragma GCC visibility push(hidden)
