// Icons, drawn as strokes of one width in a square of 24.
import {html} from './htm.js';

const PATHS = {
  plus: 'M12 5v14M5 12h14', menu: 'M4 7h16M4 12h16M4 17h16', panel: 'M4 5h16v14H4zM10 5v14', close: 'M6 6l12 12M18 6L6 18', send: 'M12 19V5M6 11l6-6 6 6', stop: 'M7 7h10v10H7z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1', check: 'M5 12.5l4.5 4.5L19 7.5', edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4', again: 'M20 11a8 8 0 10-2.3 6.3M20 5v6h-6',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5', search: 'M11 5a6 6 0 100 12 6 6 0 000-12zM20 20l-4.7-4.7', file: 'M6 3h8l4 4v14H6zM14 3v5h4',
  clip: 'M19 11l-7.5 7.5a4.6 4.6 0 01-6.5-6.5L13 4a3.1 3.1 0 014.4 4.4L9.6 16a1.5 1.5 0 01-2.1-2.1L14.500 7', next: 'M9 6l6 6-6 6', back: 'M15 6l-6 6 6 6',
  gear: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4', down: 'M12 5v14M6 13l6 6 6-6', out: 'M12 15V4M8 8l4-4 4 4M5 14v6h14v-6', in: 'M12 4v11M8 11l4 4 4-4M5 14v6h14v-6',
  tool: 'M14.500 6.500a4 4 0 00-5.300 5.200L4 17l3 3 5.300-5.200a4 4 0 005.200-5.300L15 12l-3-3z', resume: 'M7 5l11 7-11 7z', clock: 'M12 4a8 8 0 100 16 8 8 0 000-16zM12 8v4.500l3 2',
};

export const Icon = ({name}) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

// A button with an icon and a label; |quiet| shows the icon only, and the label is its name.
export function Button({icon, label, quiet, className = '', ...rest}) {
  return html`<button type="button" class=${`${quiet ? 'quiet ' : ''}${className}`} aria-label=${quiet ? label : undefined} title=${quiet ? label : undefined} ...${rest}>
    <${Icon} name=${icon} />${!quiet && html`<span>${label}</span>`}</button>`;
}
