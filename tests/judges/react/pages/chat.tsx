// The page of the guide: its component, and nothing else.

import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { Chat } from 'guide/chat';

const id = new URLSearchParams(location.search).get('id')!;
createRoot(document.getElementById('root')!).render(<StrictMode><Chat id={id} /></StrictMode>);
